"""Load jobs at the master: walks, feeding, the records, and what workers and operators ask."""
