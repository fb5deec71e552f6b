package clientcert

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

const (
	// longestRequest is how long a request takes at most that is no watch. The API server gives one up after a minute.
	longestRequest = 90 * time.Second
	// watchSlack is how much longer a watch takes at most than the API server was asked to keep it open.
	watchSlack = 30 * time.Second
)

// deadlines end each request. client-go leaves the end of a list and of a watch to the server. A proxy between it and
// the node may keep a connection open after its other end is gone, and answer probes of the connection. The node would
// then no longer learn of changes to its pods.
type deadlines struct{ next http.RoundTripper }

var _ utilnet.RoundTripperWrapper = deadlines{}

func endRequests(next http.RoundTripper) http.RoundTripper { return deadlines{next} }

// WrappedRoundTripper implements RoundTripperWrapper.
func (t deadlines) WrappedRoundTripper() http.RoundTripper { return t.next }

// RoundTrip implements http.RoundTripper.
func (t deadlines) RoundTrip(r *http.Request) (*http.Response, error) {
	longest := longestRequest
	if isWatch(r) {
		seconds, err := strconv.Atoi(r.URL.Query().Get("timeoutSeconds"))
		if err != nil { // the server decides
			return t.next.RoundTrip(r)
		}
		longest = time.Duration(seconds)*time.Second + watchSlack
	}
	ctx, cancel := context.WithTimeout(r.Context(), longest)
	answer, err := t.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, err
	}
	answer.Body = ending{answer.Body, cancel}
	return answer, nil
}

func isWatch(r *http.Request) bool { return r.URL.Query().Get("watch") != "" }

// ending is a body that ends the context of its request.
type ending struct {
	io.ReadCloser
	end context.CancelFunc
}

// Close implements io.Closer.
func (b ending) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}
