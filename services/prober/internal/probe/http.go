package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// maxRedirects is after how many a chain of redirects is an error.
const maxRedirects = 10

// httpClients are what asks: over HTTPS HTTP/2 if the server offers it, over HTTP only HTTP/1.1, and
// h2c, which is HTTP/2 without TLS, by prior knowledge.
type httpClients struct{ plain, h2c *http.Transport }

func newHTTPClients() httpClients {
	transport := func() *http.Transport {
		return &http.Transport{
			DialContext:        dialer().DialContext,
			TLSClientConfig:    &tls.Config{InsecureSkipVerify: true}, // a probe asks whether it answers, not who
			DisableKeepAlives:  true,
			DisableCompression: true, // sends no Accept-Encoding
			ForceAttemptHTTP2:  true,
		}
	}
	h2c := transport()
	h2c.ForceAttemptHTTP2 = false
	h2c.Protocols = new(http.Protocols)
	h2c.Protocols.SetUnencryptedHTTP2(true)
	return httpClients{transport(), h2c}
}

func (p *Prober) httpGet(ctx context.Context, t Target) (Verdict, error) {
	request, err := newRequest(ctx, t)
	if err != nil {
		return Verdict{}, err
	}
	client := &http.Client{Transport: p.http.plain, Timeout: t.timeout(), CheckRedirect: stayAtHost}
	if protocol := t.Probe.HTTPGet.Protocol; p.o.H2C && protocol != nil && *protocol == v1.HTTPProtocolHTTP2 {
		client.Transport = p.http.h2c
	}
	response, err := client.Do(request)
	if err != nil {
		if ctx.Err() != nil {
			return Verdict{}, ctx.Err()
		}
		return failure("%s", err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxOutput))
	if err != nil {
		return Verdict{}, fmt.Errorf("%w: %w", ErrBroken, err)
	}
	switch code := response.StatusCode; {
	case code < http.StatusOK || code >= http.StatusBadRequest:
		// The body stays out of the event: it is the application's, and may tell its secrets.
		return failure("HTTP probe failed with statuscode: %d", code)
	case code >= http.StatusMultipleChoices:
		return Verdict{Warning, "Probe terminated redirects, Response body: " + string(body)}, nil
	default:
		return Verdict{Success, string(body)}, nil
	}
}

// stayAtHost follows redirects within one host; one that leads away ends the probe as it is.
func stayAtHost(request *http.Request, via []*http.Request) error {
	if request.URL.Hostname() != via[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	if len(via) >= maxRedirects {
		return errors.New("stopped after 10 redirects")
	}
	return nil
}

func newRequest(ctx context.Context, t Target) (*http.Request, error) {
	get := t.Probe.HTTPGet
	host, port, err := Endpoint(t)
	if err != nil {
		return nil, err
	}
	target, err := url.Parse(get.Path)
	if err != nil {
		target = &url.URL{Path: get.Path} // too late to refuse it: it is sent as it is
	}
	target.Scheme = "http"
	if get.Scheme != "" {
		target.Scheme = strings.ToLower(string(get.Scheme))
	}
	target.Host = net.JoinHostPort(host, strconv.Itoa(port))
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	header := http.Header{}
	for _, h := range get.HTTPHeaders {
		header.Add(h.Name, h.Value)
	}
	if _, set := header["User-Agent"]; !set {
		header.Set("User-Agent", userAgent)
	}
	if values, set := header["Accept"]; !set {
		header.Set("Accept", "*/*")
	} else if values[0] == "" {
		header.Del("Accept")
	}
	request.Header = header
	request.Host = header.Get("Host")
	return request, nil
}
