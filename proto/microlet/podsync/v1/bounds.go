package podsyncv1

// Bounds of an EvictRequest. podsync refuses a request that exceeds one of them.
const (
	// MaxEvictMessage is the length of the message in bytes.
	MaxEvictMessage = 8 << 10
	// MaxEvictGracePeriodSeconds is the longest grace period.
	MaxEvictGracePeriodSeconds = 24 * 60 * 60
	// MaxEvictAnnotations is the number of annotations.
	MaxEvictAnnotations = 16
	// MaxEvictAnnotation is the length of one annotation in bytes, with its key.
	MaxEvictAnnotation = 4 << 10
)
