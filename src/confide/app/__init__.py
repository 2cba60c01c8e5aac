"""What people touch: the command line, estimators, folders of runs, the report, the demonstration."""
