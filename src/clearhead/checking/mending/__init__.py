"""The outcome that a lesson asks for, and the change of one place in what a learner wrote that gives it."""
