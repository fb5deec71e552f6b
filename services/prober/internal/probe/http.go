package probe

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/httpaction"
	"github.com/microlet/microlet/services/internal/podtls"
	"github.com/microlet/microlet/services/internal/requestconn"
)

// httpClients are what asks: over HTTPS HTTP/2 if the server offers it, over HTTP only HTTP/1.1, and
// h2c, which is HTTP/2 without TLS, by prior knowledge.
type httpClients struct{ plain, h2c http.RoundTripper }

func newHTTPClients() httpClients {
	secure := &tls.Config{
		InsecureSkipVerify: true, //nolint:gosec // a probe asks whether it answers, not who
		NextProtos:         []string{"h2", "http/1.1"},
	}
	forRequests := requestconn.New(dial)
	transport := func() *http.Transport {
		return &http.Transport{
			DialContext:        forRequests,
			DialTLSContext:     podtls.New(forRequests, secure),
			DisableKeepAlives:  true,
			DisableCompression: true, // sends no Accept-Encoding
			ForceAttemptHTTP2:  true,

			MaxResponseHeaderBytes: maxHeader,
			// What a server sends over HTTP/2 before it is read. It is the least that may be said.
			HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10, MaxReceiveBufferPerConnection: 64 << 10},
		}
	}
	h2c := transport()
	h2c.ForceAttemptHTTP2 = false
	h2c.Protocols = new(http.Protocols)
	h2c.Protocols.SetUnencryptedHTTP2(true)
	return httpClients{&oneShot{dial: dial, other: transport()}, h2c}
}

func (p *Prober) httpGet(ctx context.Context, t Target) (Result, error) {
	// The client's own timeout needs a goroutine with a transport that it does not know.
	outer := ctx
	ctx, cancel := context.WithTimeout(ctx, t.timeout())
	defer cancel()
	ctx, end := requestconn.With(ctx)
	defer end()
	request, err := newRequest(ctx, t)
	if err != nil {
		return Result{}, err
	}
	client := &http.Client{Transport: p.http.plain, CheckRedirect: httpaction.StayAtHost}
	if protocol := t.Probe.HTTPGet.Protocol; p.o.H2C && protocol != nil && *protocol == v1.HTTPProtocolHTTP2 {
		client.Transport = p.http.h2c
	}
	response, err := client.Do(request)
	if err != nil {
		switch {
		case outer.Err() != nil:
			return Result{}, outer.Err()
		case ctx.Err() != nil:
			return failure("%s (Client.Timeout exceeded while awaiting headers)", err) // the client's words
		}
		return failure("%s", err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxOutput))
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w (Client.Timeout or context cancellation while reading body)", err)
		}
		return Result{}, fmt.Errorf("%w: %w", ErrBroken, err)
	}
	switch code := response.StatusCode; {
	case code < http.StatusOK || code >= http.StatusBadRequest:
		// The body stays out of the event: it is the application's, and may contain its secrets.
		return failure("HTTP probe failed with statuscode: %d", code)
	case code >= http.StatusMultipleChoices:
		return Result{Warning, "Probe terminated redirects, Response body: " + string(body)}, nil
	default:
		return Result{Success, string(body)}, nil
	}
}

func newRequest(ctx context.Context, t Target) (*http.Request, error) {
	host, port, err := Endpoint(t)
	if err != nil {
		return nil, err
	}
	return httpaction.NewRequest(ctx, t.Probe.HTTPGet, host, port, userAgent)
}
