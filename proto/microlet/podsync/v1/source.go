package podsyncv1

// Static reports whether pods of the source are static pods, which the API shows by their mirror pods alone.
func (s PodSource) Static() bool { return s != PodSource_POD_SOURCE_API }
