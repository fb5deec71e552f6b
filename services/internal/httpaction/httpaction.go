// Package httpaction builds the HTTP request of a probe or a lifecycle hook.
//
// It turns a core/v1 HTTPGetAction, the container and its address into a request and a redirect policy. Probes and
// hooks so interpret an action in the same way: named ports, the path as it is written, and the headers that the pod
// may set or suppress. The caller provides the client and decides what counts as success.
package httpaction

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// maxRedirects is after how many a chain of redirects is an error, as in the kubelet.
const maxRedirects = 10

// Port resolves a port that may be the name of one of the container's.
func Port(port intstr.IntOrString, c *v1.Container) (int, error) {
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
	if number < 1 || number > 65535 {
		return 0, fmt.Errorf("invalid port number: %d", number)
	}
	return number, nil
}

// NewRequest makes the action's request to a host and port, which Port has resolved. The agent is
// what User-Agent says unless the action sets it: servers filter on it. An empty Accept suppresses
// the header.
func NewRequest(ctx context.Context, action *v1.HTTPGetAction, host string, port int,
	agent string) (*http.Request, error) {
	target, err := url.Parse(action.Path)
	if err != nil {
		target = &url.URL{Path: action.Path} // too late to refuse it: it is sent as it is
	}
	target.Scheme = "http"
	if action.Scheme != "" {
		target.Scheme = strings.ToLower(string(action.Scheme))
	}
	target.Host = net.JoinHostPort(host, strconv.Itoa(port))
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	for _, h := range action.HTTPHeaders {
		request.Header.Add(h.Name, h.Value)
	}
	if _, set := request.Header["User-Agent"]; !set {
		request.Header.Set("User-Agent", agent)
	}
	if accept, set := request.Header["Accept"]; !set {
		request.Header.Set("Accept", "*/*")
	} else if accept[0] == "" {
		request.Header.Del("Accept")
	}
	request.Host = request.Header.Get("Host")
	return request, nil
}

// StayAtHost follows redirects within one host; one that leads away is not followed, and its answer
// is the result. It is a http.Client's CheckRedirect.
func StayAtHost(request *http.Request, via []*http.Request) error {
	if request.URL.Hostname() != via[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	if len(via) >= maxRedirects {
		return errors.New("stopped after 10 redirects")
	}
	return nil
}
