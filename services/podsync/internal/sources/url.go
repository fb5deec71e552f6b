package sources

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/podsync/internal/sources/manifest"
)

// urlTimeout bounds one request, as the kubelet's.
const urlTimeout = 10 * time.Second

// maxHeader bounds the headers of an answer. net/http takes 10 MiB, which become sixteen times as much in memory when
// the lines are short.
const maxHeader = 64 << 10

// URLOptions say where the manifest is.
type URLOptions struct {
	// URL is staticPodURL; it answers with a Pod or a PodList.
	URL string
	// Header is staticPodURLHeader.
	Header map[string][]string
	// Period is httpCheckFrequency. The kubelet's default is 20 s.
	Period   time.Duration
	NodeName string
	Events   record.EventRecorder
	Log      *slog.Logger
	Metrics  *Metrics
}

// URL is the source of static pods from a web server.
type URL struct {
	o      URLOptions
	client *http.Client
	set    *set
	last   []byte
	failed string
}

// NewURL returns the source; Run starts it.
func NewURL(o URLOptions) *URL {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxResponseHeaderBytes = maxHeader
	return &URL{o: o, client: &http.Client{Timeout: urlTimeout, Transport: transport, CheckRedirect: stayWithHTTPS}}
}

// stayWithHTTPS follows as many redirects as http.Client does, but none from HTTPS to HTTP: the answer can be any
// server's there, and what it names runs on this node.
func stayWithHTTPS(next *http.Request, via []*http.Request) error {
	if len(via) >= 10 {
		return errors.New("stopped after 10 redirects")
	}
	if via[len(via)-1].URL.Scheme == "https" && next.URL.Scheme != "https" {
		return errors.New("the server redirects from HTTPS to HTTP")
	}
	return nil
}

// Run asks again and again until ctx ends. An answer that cannot be used changes nothing.
func (u *URL) Run(ctx context.Context, sink Sink) error {
	u.set = newSet(podsyncv1.PodSource_POD_SOURCE_HTTP, sink, u.o.Log)
	ticker := time.NewTicker(u.o.Period)
	defer ticker.Stop()
	for {
		u.logChange(u.once(ctx))
		select {
		case <-ctx.Done():
			u.client.CloseIdleConnections()
			return nil
		case <-ticker.C:
		}
	}
}

func (u *URL) once(ctx context.Context) error {
	data, err := u.get(ctx)
	if err != nil {
		return err
	}
	if len(data) == 0 {
		u.last = nil
		u.set.replace(nil)
		return errors.New("the answer is empty, so no pod of the URL is wanted: answer with a Pod or a PodList")
	}
	if bytes.Equal(data, u.last) {
		return nil
	}
	pods, err := manifest.ParseAll(data, manifest.Origin{NodeName: u.o.NodeName, URL: u.o.URL})
	if err != nil {
		return err
	}
	u.last = data
	u.set.replace(u.set.unique(pods, false, func(p *v1.Pod) {
		u.set.log.Error("the URL names a pod twice, the first is run", logkey.Pod, p.Namespace+"/"+p.Name)
		u.o.Events.Eventf(p, v1.EventTypeWarning, "FailedValidation",
			"Error validating pod %s_%s(%s) from http due to duplicate pod name %q, ignoring", p.Name, p.Namespace,
			p.UID, p.Name)
	}))
	return nil
}

func (u *URL) get(ctx context.Context) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.o.URL, nil)
	if err != nil {
		return nil, withoutURL(err)
	}
	for name, values := range u.o.Header {
		for _, v := range values {
			request.Header.Add(name, v)
		}
	}
	if host := request.Header.Get("Host"); host != "" {
		request.Host = host
	}
	answer, err := u.client.Do(request)
	if err != nil {
		return nil, withoutURL(err)
	}
	defer answer.Body.Close()
	data, err := manifest.Read(answer.Body)
	if err != nil {
		return nil, withoutURL(err)
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the server answers %s", answer.Status)
	}
	return data, nil
}

// withoutURL takes the URL off an error: it may hold a password.
func withoutURL(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}

// logChange logs what is wrong, once for each change of it.
func (u *URL) logChange(err error) {
	broken := u.o.Metrics.broken.WithLabelValues(Name(u.set.from))
	if err == nil {
		if u.failed != "" {
			u.set.log.Info("the URL of static pods is read again")
		}
		u.failed = ""
		broken.Set(0)
		return
	}
	broken.Set(1)
	u.o.Metrics.failures.WithLabelValues(Name(u.set.from)).Inc()
	if u.failed != err.Error() {
		u.failed = err.Error()
		u.set.log.Error("the URL of static pods cannot be used", logkey.Err, err)
	}
}
