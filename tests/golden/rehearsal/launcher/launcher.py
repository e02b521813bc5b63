# the launcher, fixed for tests
