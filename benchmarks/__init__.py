"""Speed and cost of training steps and attacks, measured as ratios within one run. Not part of the wheel."""
