"""One file per estimator, with the estimator's name. A new file adds an estimator."""
