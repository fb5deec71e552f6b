package clientcert

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

const (
	// protobuf and cbor are formats that nothing but an API server speaks.
	protobuf = "application/vnd.kubernetes.protobuf"
	cbor     = "application/cbor"
	// maxRefusal bounds what is read of an answer that is no success. The API server says why in less.
	maxRefusal = 64 << 10
)

// answers takes a success for one of the API server only if it is an object of the API. client-go reads any JSON of
// status 200 as an object without content, as an empty list or as the answer to a deletion, and does not read what is
// no JSON after a deletion. A load balancer gives such answers for its health check or a page about maintenance.
type answers struct{ next http.RoundTripper }

var _ utilnet.RoundTripperWrapper = answers{}

func checkAnswers(next http.RoundTripper) http.RoundTripper { return answers{next} }

// WrappedRoundTripper implements RoundTripperWrapper.
func (t answers) WrappedRoundTripper() http.RoundTripper { return t.next }

// RoundTrip implements http.RoundTripper.
func (t answers) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := t.next.RoundTrip(r)
	if err != nil {
		return answer, err
	}
	switch {
	case answer.StatusCode >= 300 && answer.StatusCode < 400:
		err = checkRedirect(r, answer)
	case answer.StatusCode < 200 || answer.StatusCode >= 300:
		answer.Body = partOf{io.LimitReader(answer.Body, maxRefusal), answer.Body}
	case !isWatch(r): // the objects of a watch come one by one, each with its type
		err = checkObject(answer)
	}
	if err != nil {
		_ = answer.Body.Close() // it is not the API server's
		return nil, err
	}
	return answer, nil
}

// checkRedirect refuses the redirects after which http.Client sends a GET in place of another request: the answer to it
// is an object, and nothing was written or deleted. It refuses those that lead from HTTPS to HTTP, too: the token
// can be read there, and the answer can be any server's on the way.
func checkRedirect(r *http.Request, answer *http.Response) error {
	to := answer.Header.Get("Location")
	if next, err := answer.Location(); err == nil && r.URL.Scheme == "https" && next.Scheme != "https" {
		return fmt.Errorf("the server of the kubeconfig redirects to %q, which is not HTTPS", to)
	}
	switch answer.StatusCode {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther:
	default:
		return nil
	}
	if r.Method == http.MethodGet {
		return nil
	}
	return fmt.Errorf("the server of the kubeconfig redirects a %s to %q (%s): name that server in the kubeconfig",
		r.Method, to, answer.Status)
}

// errNoObject is in errors about answers that are not the API server's.
var errNoObject = errors.New("the answer is no object of the API, so it is not the API server's")

// checkObject reports why an answer is no object. An object of JSON has a kind.
func checkObject(answer *http.Response) error {
	kind := answer.Header.Get("Content-Type")
	switch media, _, _ := mime.ParseMediaType(kind); media {
	case protobuf, cbor:
		return nil
	case "application/json":
	default:
		return fmt.Errorf("%w: its content type is %q", errNoObject, kind)
	}
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	var object struct {
		Kind string `json:"kind"`
	}
	if err := json.Unmarshal(text, &object); err != nil {
		return fmt.Errorf("%w: %w", errNoObject, err)
	}
	if object.Kind == "" {
		return fmt.Errorf("%w: it has no kind", errNoObject)
	}
	answer.Body = partOf{bytes.NewReader(text), answer.Body}
	return nil
}

// partOf is a body of which something else is read.
type partOf struct {
	io.Reader
	io.Closer
}
