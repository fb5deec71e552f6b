// Package clientcert configures clients of the API server that can replace their certificate while they run.
//
// A kubeconfig may name a client certificate that does not exist yet: requests fail until it does. When the file is
// replaced, the next request uses a new connection. Requests that run, such as watches, keep theirs until they end:
// the API server has authenticated them. With rotateCertificates, the certificate of --cert-dir may come before the one
// that the kubeconfig has; see Load.
//
// No answer has a client wait for more than 10 s before it asks again (Retry-After). A success that is no object of the
// API is an error. Each request ends: a watch 30 s after the API server should have ended it, and any other request
// after 90 s.
package clientcert
