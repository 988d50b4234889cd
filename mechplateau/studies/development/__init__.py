"""Learning coefficients on plateaus (ours): are they estimable, do they move first, do they tell more than the loss?"""
