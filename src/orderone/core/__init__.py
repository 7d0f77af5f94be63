"""Records, run folders, parameter selection, accurate reductions and errors: imports nothing of ours."""
