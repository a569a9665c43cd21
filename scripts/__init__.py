"""The command-line scripts. In a wheel they are scratch_bert.scripts, and the console commands are the same mains."""
