package hook

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/httpaction"
	"github.com/microlet/microlet/services/internal/kubeversion"
	"github.com/microlet/microlet/services/internal/podtls"
	"github.com/microlet/microlet/services/internal/requestconn"
)

const (
	userAgent = "kube-lifecycle/" + kubeversion.MajorMinor
	// maxBody is how much of an answer is read: as much as a friendly server sends.
	maxBody = 10 << 10
	// maxHeader bounds the headers of an answer, which take sixteen times as much memory when the lines are short. The
	// kubelet takes 10 MiB, and many clients 8 KiB.
	maxHeader = 16 << 10
	// plainAnswer is what net/http says of a server that answers HTTPS with HTTP.
	plainAnswer = "server gave HTTP response to HTTPS client"

	reasonFallback = "LifecycleHTTPFallback"
)

// newClient makes a client that follows redirects on the same host only, and takes every
// certificate: a pod has no name that one could be checked against.
func newClient() *http.Client {
	insecure := &tls.Config{InsecureSkipVerify: true} //nolint:gosec // a pod has no name to check
	dial := requestconn.New((&net.Dialer{}).DialContext)
	return &http.Client{
		Transport: &http.Transport{
			DialContext:       dial,
			DialTLSContext:    podtls.New(dial, insecure),
			DisableKeepAlives: true, // a hook runs once

			MaxResponseHeaderBytes: maxHeader,
		},
		CheckRedirect: httpaction.StayAtHost,
	}
}

// httpGet makes the request. A server that answers HTTPS with HTTP is asked again with
// HTTP, without the credentials, as under the kubelet: hooks long had no TLS at all.
func (r *Runner) httpGet(ctx context.Context, in Input, action *v1.HTTPGetAction) error {
	ctx, end := requestconn.With(ctx)
	defer end()
	req, err := request(ctx, in, action)
	if err != nil {
		return err
	}
	err = r.send(req)
	if err == nil || !strings.Contains(err.Error(), plainAnswer) {
		return err
	}
	again := req.Clone(ctx)
	again.URL.Scheme = "http"
	again.Header.Del("Authorization")
	if r.send(again) != nil {
		return err
	}
	r.fallbacks.Inc()
	r.opts.Events.Eventf(in.Pod, v1.EventTypeWarning, reasonFallback,
		"request to HTTPS lifecycle hook %s got HTTP response, retry with HTTP succeeded", req.URL.Host)
	return nil
}

func (r *Runner) send(req *http.Request) error {
	resp, err := r.client.Do(req)
	if err != nil {
		return err
	}
	// The answer's status does not count, and its body only as far as the server wants to see it read.
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxBody))
	_ = resp.Body.Close()
	return nil
}

func request(ctx context.Context, in Input, action *v1.HTTPGetAction) (*http.Request, error) {
	host := action.Host
	if host == "" {
		host = in.PodIP
	}
	if host == "" {
		return nil, errors.New("the pod has no address yet: name a host in httpGet")
	}
	port, err := httpaction.Port(action.Port, in.Container)
	if err != nil {
		return nil, err
	}
	return httpaction.NewRequest(ctx, action, host, port, userAgent)
}
