package httpaction

import (
	"errors"
	"net/http"
	"net/url"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestPort(t *testing.T) {
	c := &v1.Container{Ports: []v1.ContainerPort{{Name: "web", ContainerPort: 8080}, {Name: "bad", ContainerPort: 0}}}
	for _, test := range []struct {
		port intstr.IntOrString
		want int // 0 is refused
	}{
		{intstr.FromInt32(1), 1}, {intstr.FromInt32(65535), 65535}, {intstr.FromString("web"), 8080},
		{intstr.FromInt32(0), 0}, {intstr.FromInt32(65536), 0}, {intstr.FromInt32(-1), 0},
		{intstr.FromString("none"), 0}, {intstr.FromString("bad"), 0}, {intstr.FromString("8080"), 0},
	} {
		got, err := Port(test.port, c)
		if got != test.want || (err == nil) != (test.want != 0) {
			t.Errorf("port %s: %d, %v, want %d", test.port.String(), got, err, test.want)
		}
	}
}

func TestNewRequest(t *testing.T) {
	header := func(pairs ...string) (all []v1.HTTPHeader) {
		for i := 0; i < len(pairs); i += 2 {
			all = append(all, v1.HTTPHeader{Name: pairs[i], Value: pairs[i+1]})
		}
		return all
	}
	tests := map[string]struct {
		action      v1.HTTPGetAction
		host        string
		url, agent  string
		accept      []string
		requestHost string
	}{
		"plain": {v1.HTTPGetAction{Path: "/a?b=c"}, "10.0.0.1", "http://10.0.0.1:80/a?b=c", "kube/1", []string{"*/*"},
			""},
		"HTTPS": {v1.HTTPGetAction{Path: "a", Scheme: v1.URISchemeHTTPS}, "10.0.0.1", "https://10.0.0.1:80/a",
			"kube/1", []string{"*/*"}, ""},
		"IPv6": {v1.HTTPGetAction{Path: "/"}, "fd00::1", "http://[fd00::1]:80/", "kube/1", []string{"*/*"}, ""},
		"own headers": {v1.HTTPGetAction{HTTPHeaders: header("user-agent", "mine", "Accept", "text/css", "Host", "name")},
			"h", "http://h:80", "mine", []string{"text/css"}, "name"},
		"no Accept":     {v1.HTTPGetAction{HTTPHeaders: header("Accept", "")}, "h", "http://h:80", "kube/1", nil, ""},
		"no path":       {v1.HTTPGetAction{}, "h", "http://h:80", "kube/1", []string{"*/*"}, ""},
		"a broken path": {v1.HTTPGetAction{Path: "/%zz"}, "h", "http://h:80/%25zz", "kube/1", []string{"*/*"}, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := NewRequest(t.Context(), &test.action, test.host, 80, "kube/1")
			if err != nil {
				t.Fatal(err)
			}
			if got.URL.String() != test.url || got.Header.Get("User-Agent") != test.agent ||
				got.Host != test.requestHost {
				t.Errorf("%s as %q for %q", got.URL, got.Header.Get("User-Agent"), got.Host)
			}
			if accept := got.Header["Accept"]; len(accept) != len(test.accept) ||
				len(accept) == 1 && accept[0] != test.accept[0] {
				t.Errorf("Accept %q, want %q", accept, test.accept)
			}
		})
	}
}

func TestStayAtHost(t *testing.T) {
	at := func(host string) *http.Request { return &http.Request{URL: &url.URL{Scheme: "http", Host: host}} }
	via := []*http.Request{at("a:80")}
	if err := StayAtHost(at("a:8080"), via); err != nil {
		t.Errorf("another port of the same host: %v", err)
	}
	if err := StayAtHost(at("b:80"), via); !errors.Is(err, http.ErrUseLastResponse) {
		t.Errorf("another host: %v", err)
	}
	for len(via) < maxRedirects {
		via = append(via, at("a:80"))
	}
	if err := StayAtHost(at("a:80"), via); err == nil || errors.Is(err, http.ErrUseLastResponse) {
		t.Errorf("a chain without end: %v", err)
	}
}
