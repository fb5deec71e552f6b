package objects

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// bindingLag is how long the apiserver may not know yet of a pod that the watch has just sent to the node
	// of: what it decides by are watches of its own, which lag behind when many pods come at once.
	bindingLag = 3 * time.Second
	// Pauses between two tries.
	firstPause, longestPause = 10 * time.Millisecond, 200 * time.Millisecond
)

// bound asks for something that a pod gives the node the right to.
func bound[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	return AskAgain(ctx, Lags, ask)
}

// AskAgain asks, and asks again for a moment while the apiserver may not know of a pod: as an error it would cost the
// pod's start a retry and a Warning Event.
func AskAgain[T any](ctx context.Context, lags func(error) bool, ask func() (T, error)) (T, error) {
	begun := time.Now()
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		got, err := ask()
		if err == nil || !lags(err) || time.Since(begun)+pause > bindingLag {
			return got, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return got, err
		}
	}
}

// Lags reports whether an answer may be of an apiserver that is behind: the Node authorizer refuses what no
// pod of the node names, and no token is given for a pod that is not there.
func Lags(err error) bool {
	if apierrors.IsForbidden(err) {
		return true
	}
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details != nil && (details.Kind == "pod" || details.Kind == "pods")
}
