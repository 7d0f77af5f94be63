"""Charts, tables and pages: the only room that draws, and it draws from records."""
