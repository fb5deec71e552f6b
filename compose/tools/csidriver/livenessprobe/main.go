// Command livenessprobe answers /healthz with what a CSI driver says of itself, under the flags of Kubernetes'
// livenessprobe.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func main() {
	driver := flag.String("csi-address", "/run/csi/socket", "`path` of the driver's socket")
	port := flag.Int("health-port", 9808, "`port` at which /healthz is served")
	timeout := flag.Duration("probe-timeout", time.Second, "how long the driver has for an answer")
	flag.Int("v", 0, "ignored: this program logs little")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *driver, fmt.Sprintf(":%d", *port), *timeout); err != nil {
		fmt.Fprintln(os.Stderr, "livenessprobe:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends.
func run(ctx context.Context, driver, address string, timeout time.Duration) error {
	conn, err := grpc.NewClient("unix://"+driver, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	server := &http.Server{Addr: address, ReadHeaderTimeout: time.Second, Handler: health(conn, timeout)}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// health answers 200 if the driver is ready, and 500 with the reason if it is not.
func health(conn grpc.ClientConnInterface, timeout time.Duration) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), timeout)
		defer cancel()
		answer, err := csi.NewIdentityClient(conn).Probe(ctx, &csi.ProbeRequest{})
		if err == nil && answer.GetReady() != nil && !answer.GetReady().GetValue() {
			err = errors.New("the driver is not ready")
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	return mux
}
