"""Tools that Loopwright itself gives to agents."""
