// Package health asks the programs of a rig whether they work.
package health

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// HTTP fails unless a program of the same node answers at the address with 200. Certificates are not verified: these
// programs sign their own.
func HTTP(ctx context.Context, address string) error {
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", address, resp.Status)
	}
	return nil
}

// Runtime fails unless the container runtime and its network are ready.
func Runtime(ctx context.Context, conn grpc.ClientConnInterface) error {
	status, err := runtimeapi.NewRuntimeServiceClient(conn).Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		return err
	}
	for _, c := range status.GetStatus().GetConditions() {
		if !c.Status && (c.Type == runtimeapi.RuntimeReady || c.Type == runtimeapi.NetworkReady) {
			return fmt.Errorf("runtime condition %s is false: %s: %s", c.Type, c.Reason, c.Message)
		}
	}
	return nil
}
