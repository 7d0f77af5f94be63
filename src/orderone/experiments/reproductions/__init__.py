"""One file a published figure or table; ``experiments.reproduction`` says what is in each."""
