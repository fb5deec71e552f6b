package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/common/model"
)

const (
	// refresh is how often a browser reloads the page.
	refresh = 10 * time.Second
	// longest is the most that a picture covers: what a Prometheus keeps by default.
	longest = 15 * 24 * time.Hour
	// atOnce bounds the pictures that are drawn at the same time: each asks all queries.
	atOnce     = 2
	headerTime = 10 * time.Second
	endTime    = 2 * time.Second
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// shown is what the page is made of.
type shown struct {
	Title   string
	Refresh int // seconds
	Last    string
	Choices []string
	Picture template.HTML // it is ours, and draw escapes the texts in it
	Fault   string
}

// site serves a dashboard as a page that is drawn at each request.
type site struct {
	board    board
	url      string
	last     time.Duration // unless the request says otherwise
	interval time.Duration
	places   chan struct{}
}

func newSite(b board, url string, last, interval time.Duration) (*site, error) {
	if _, err := newSource(url, last, interval); err != nil {
		return nil, err
	}
	return &site{board: b, url: url, last: last, interval: interval, places: make(chan struct{}, atOnce)}, nil
}

// handler has the page at /, and /healthz, which asks Prometheus nothing.
func (s *site) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.servePage)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	return mux
}

func (s *site) servePage(w http.ResponseWriter, r *http.Request) {
	last := s.last
	if text := r.URL.Query().Get("last"); text != "" {
		d, err := model.ParseDuration(text)
		if last = time.Duration(d); err != nil || last < points*time.Second || last > longest {
			http.Error(w, fmt.Sprintf("last=%q: give a duration from 2m to 15d, such as 1h", text), http.StatusBadRequest)
			return
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	select {
	case s.places <- struct{}{}:
		defer func() { <-s.places }()
	case <-ctx.Done():
		http.Error(w, "other pictures are being drawn: try again", http.StatusServiceUnavailable)
		return
	}
	v := shown{
		Title: s.board.Title, Refresh: int(refresh.Seconds()), Last: model.Duration(last).String(),
		Choices: []string{"5m", "15m", "1h", "6h", "1d"},
	}
	code := http.StatusOK
	if picture, err := s.picture(ctx, last); err != nil {
		v.Fault, code = fmt.Sprintf("The Prometheus at %s does not answer: %v", s.url, err), http.StatusBadGateway
	} else {
		v.Picture = template.HTML(picture) //nolint:gosec // see shown
	}
	var b bytes.Buffer
	if err := page.Execute(&b, v); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	w.WriteHeader(code)
	_, _ = b.WriteTo(w)
}

func (s *site) picture(ctx context.Context, last time.Duration) ([]byte, error) {
	// Beyond an hour, points are further apart than the interval, and what is between them would be left out.
	source, err := newSource(s.url, last, max(s.interval, 2*last/points))
	if err != nil {
		return nil, err
	}
	return draw(ctx, s.board, source)
}

// serve serves the site until the context ends.
func serve(ctx context.Context, l net.Listener, s *site) error {
	server := &http.Server{
		Handler: s.handler(), ReadHeaderTimeout: headerTime, WriteTimeout: patience + headerTime, IdleTimeout: time.Minute,
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		err = errors.Join(err, server.Close())
		<-ended
		return err
	}
	<-ended
	return nil
}
