package hook

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
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	userAgent = "kube-lifecycle/1.37"
	// maxBody is how much of an answer is read: as much as a friendly server sends.
	maxBody      = 10 << 10
	maxRedirects = 10
	// plainAnswer is what net/http says of a server that answers HTTPS with HTTP.
	plainAnswer = "server gave HTTP response to HTTPS client"

	reasonFallback = "LifecycleHTTPFallback"
)

// newClient makes a client that follows redirects on the same host only, and takes every
// certificate: a pod has no name that one could be checked against.
func newClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
			DisableKeepAlives: true, // a hook runs once
		},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if r.URL.Hostname() != via[0].URL.Hostname() {
				return http.ErrUseLastResponse
			}
			if len(via) >= maxRedirects {
				return errors.New("stopped after 10 redirects")
			}
			return nil
		},
	}
}

// httpGet makes the request. A server that answers HTTPS with HTTP is asked again with
// HTTP, without the credentials, as with the kubelet: hooks long had no TLS at all.
func (r *Runner) httpGet(ctx context.Context, in Input, action *v1.HTTPGetAction) error {
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
	port, err := containerPort(action.Port, in.Container)
	if err != nil {
		return nil, err
	}
	where, err := url.Parse(action.Path)
	if err != nil {
		where = &url.URL{Path: action.Path} // too late to refuse it
	}
	where.Scheme = strings.ToLower(string(action.Scheme))
	if where.Scheme == "" {
		where.Scheme = "http"
	}
	where.Host = net.JoinHostPort(host, strconv.Itoa(port))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, where.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	for _, h := range action.HTTPHeaders {
		req.Header.Add(h.Name, h.Value)
	}
	if _, set := req.Header["User-Agent"]; !set {
		req.Header.Set("User-Agent", userAgent)
	}
	if accept, set := req.Header["Accept"]; !set {
		req.Header.Set("Accept", "*/*")
	} else if accept[0] == "" {
		req.Header.Del("Accept")
	}
	req.Host = req.Header.Get("Host")
	return req, nil
}

// containerPort is a port's number, or that of the container's port of this name.
func containerPort(port intstr.IntOrString, c *v1.Container) (int, error) {
	number := port.IntValue()
	if port.Type == intstr.String {
		found := false
		for i := range c.Ports {
			if c.Ports[i].Name == port.StrVal {
				number, found = int(c.Ports[i].ContainerPort), true
				break
			}
		}
		if !found {
			return 0, fmt.Errorf("port %q not found", port.StrVal)
		}
	}
	if number <= 0 || number > 65535 {
		return 0, fmt.Errorf("invalid port number: %d", number)
	}
	return number, nil
}
