"""Which deployment serves a traffic within an SLA: engines, degrees, replicas, batch, disaggregated splits.

space    the groups of GPUs that there may be: engine and degrees of one replica
tables   what their steps take, of all groups from one call of the estimators
steady   what a group does with so many requests at a time, in formulas
search   deployments of groups on so many GPUs, those within the SLA, the frontier
emit     the engines' command lines
"""
