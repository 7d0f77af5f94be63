"""Records, run folders, parameter selection, accurate reductions, errors: imports none of ours."""
