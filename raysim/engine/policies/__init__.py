"""Pure decisions of a run: who takes part, where actors go, what a metric means. Nothing here acts."""
