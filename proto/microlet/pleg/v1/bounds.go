package plegv1

// MaxWatchedPods is how many pods a WatchPodsResponse names.
const MaxWatchedPods = 500
