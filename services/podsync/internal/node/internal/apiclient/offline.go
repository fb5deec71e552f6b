package apiclient

import (
	"errors"
	"net/http"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// errNoAPIServer is the error of a call on a node without an apiserver.
var errNoAPIServer = errors.New("this node runs without an apiserver: no --kubeconfig was given")

// offline answers every request with errNoAPIServer.
type offline struct{}

// RoundTrip implements http.RoundTripper.
func (offline) RoundTrip(*http.Request) (*http.Response, error) { return nil, errNoAPIServer }

// newOffline returns the client of a node without an apiserver: each call returns an error at once. Nothing is listed
// or watched with it.
func newOffline() (kubernetes.Interface, error) {
	return kubernetes.NewForConfig(&rest.Config{Host: "http://standalone.invalid", Transport: offline{}, QPS: -1})
}
