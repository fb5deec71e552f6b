// Command dashboard serves a Grafana dashboard as a page with what a Prometheus has. It draws the page at each request.
//
//	dashboard -prometheus URL -last 5m -listen :3000 DASHBOARD.json
//
// It asks the queries of the panels as Grafana asks them, and draws rows, single figures and curves over time in the
// dashboard's grid, as one SVG. It is for the rig of containers, where no Grafana runs.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// patience is how long Prometheus may take for all queries.
const patience = 30 * time.Second

func main() {
	url := flag.String("prometheus", "http://127.0.0.1:9090", "the URL of the Prometheus that is asked")
	last := flag.Duration("last", 5*time.Minute, "the time that the picture covers, up to now, unless the request says it")
	interval := flag.Duration("rate-interval", time.Minute, "the value of $__rate_interval: at least four scrapes")
	listen := flag.String("listen", ":3000", "the address of the page")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: dashboard [flags] DASHBOARD.json")
		flag.PrintDefaults()
		os.Exit(2)
	}
	if err := runSite(*listen, *url, flag.Arg(0), *last, *interval); err != nil {
		fmt.Fprintln(os.Stderr, "dashboard:", err)
		os.Exit(1)
	}
}

// runSite serves the page until a signal.
func runSite(listen, url, file string, last, interval time.Duration) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	board, err := read(file)
	if err != nil {
		return err
	}
	s, err := newSite(board, url, last, interval)
	if err != nil {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return fmt.Errorf("-listen=%s: %w", listen, err)
	}
	return serve(ctx, l, s)
}

// board is the part of a Grafana dashboard that is drawn.
type board struct {
	Title  string
	Panels []panel
}

// panel is a place in the grid of 24 columns, and the queries whose answers it shows.
type panel struct {
	Type, Title string
	GridPos     struct{ X, Y, W, H int }
	Targets     []target
	FieldConfig struct{ Defaults struct{ Unit string } }
	Options     struct{ TextMode string }
}

// target is a query, and the template of its series' names.
type target struct{ Expr, LegendFormat string }

func read(file string) (board, error) {
	var b board
	text, err := os.ReadFile(file)
	if err != nil {
		return b, err
	}
	if err := json.Unmarshal(text, &b); err != nil {
		return b, fmt.Errorf("%s: %w", file, err)
	}
	if len(b.Panels) == 0 {
		return b, fmt.Errorf("%s has no panels: is it a Grafana dashboard?", file)
	}
	return b, nil
}
