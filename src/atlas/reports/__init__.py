"""Reports: tables for papers and programs, plots, and one self-contained page."""
