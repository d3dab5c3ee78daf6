"""Drawing in a terminal, with rich: matrices, traces, reports and the screens of the commands."""
