"""The command line. It sends requests to servers and never imports their code."""
