package main

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

type identity struct {
	csi.UnimplementedIdentityServer
	ready *wrapperspb.BoolValue
}

func (i identity) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: i.ready}, nil
}

func TestHealth(t *testing.T) {
	for name, test := range map[string]struct {
		driver *identity
		code   int
		says   string
	}{
		"ready":        {&identity{ready: wrapperspb.Bool(true)}, http.StatusOK, "ok"},
		"does not say": {&identity{}, http.StatusOK, "ok"},
		"not ready":    {&identity{ready: wrapperspb.Bool(false)}, http.StatusInternalServerError, "not ready"},
		"is not there": {nil, http.StatusInternalServerError, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "csi.sock")
			if test.driver != nil {
				listener, err := net.Listen("unix", socket)
				if err != nil {
					t.Fatal(err)
				}
				server := grpc.NewServer()
				csi.RegisterIdentityServer(server, test.driver)
				go func() { _ = server.Serve(listener) }()
				defer server.Stop()
			}
			conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			answer := httptest.NewRecorder()
			health(conn, time.Minute).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/healthz", nil))
			if answer.Code != test.code || !strings.Contains(answer.Body.String(), test.says) {
				t.Errorf("it answers %d: %s", answer.Code, answer.Body)
			}
		})
	}
}
