package clientcert

import (
	"net/http"
	"strconv"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// maxRetryAfter bounds how many seconds a server may have a client wait. The API server says 1. What stands between it
// and the node may say an hour on a page about maintenance, and client-go waits as long before it asks again: a watch,
// which has no deadline, would miss what happens meanwhile.
const maxRetryAfter = 10

// retryAfter bounds the header Retry-After of answers.
type retryAfter struct{ next http.RoundTripper }

var _ utilnet.RoundTripperWrapper = retryAfter{}

func boundRetryAfter(next http.RoundTripper) http.RoundTripper { return retryAfter{next} }

// WrappedRoundTripper implements RoundTripperWrapper.
func (t retryAfter) WrappedRoundTripper() http.RoundTripper { return t.next }

// RoundTrip implements http.RoundTripper.
func (t retryAfter) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := t.next.RoundTrip(r)
	if err != nil {
		return answer, err
	}
	if seconds, no := strconv.Atoi(answer.Header.Get("Retry-After")); no == nil && seconds > maxRetryAfter {
		answer.Header.Set("Retry-After", strconv.Itoa(maxRetryAfter))
	}
	return answer, nil
}
