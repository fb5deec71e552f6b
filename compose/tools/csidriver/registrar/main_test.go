package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

type identity struct {
	csi.UnimplementedIdentityServer
}

func (identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: "a.example"}, nil
}

// TestRun registers a driver as a node agent sees it, and ends when the agent refuses it.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	o := options{driver: filepath.Join(dir, "csi.sock"), endpoint: "/node/csi.sock", dir: dir, timeout: time.Second}
	listener, err := net.Listen("unix", o.driver)
	if err != nil {
		t.Fatal(err)
	}
	driver := grpc.NewServer()
	csi.RegisterIdentityServer(driver, identity{})
	go func() { _ = driver.Serve(listener) }()
	defer driver.Stop()

	ended := make(chan error, 1)
	go func() { ended <- run(t.Context(), o) }()
	socket := filepath.Join(dir, "a.example-reg.sock")
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	agent := registerapi.NewRegistrationClient(conn)
	info, err := agent.GetInfo(t.Context(), &registerapi.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil || info.GetName() != "a.example" || info.GetEndpoint() != o.endpoint || info.GetType() != "CSIPlugin" {
		t.Fatalf("GetInfo: %v, %v", info, err)
	}
	for _, status := range []*registerapi.RegistrationStatus{
		{PluginRegistered: true}, {Error: "there is another"},
	} {
		if _, err := agent.NotifyRegistrationStatus(t.Context(), status); err != nil && status.GetPluginRegistered() {
			t.Fatal(err)
		}
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "there is another") {
		t.Errorf("refused by the agent, the registrar ends with %v", err)
	}
	if _, err := os.Stat(socket); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
}
