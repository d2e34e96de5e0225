"""The command line. It asks servers and never imports their code."""
