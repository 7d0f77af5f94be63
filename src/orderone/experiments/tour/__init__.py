"""The demo: every tool once, on one small network; a file each stop."""
