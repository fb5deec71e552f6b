package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestLogCalls reads a line as the suite does.
func TestLogCalls(t *testing.T) {
	var out bytes.Buffer
	request := &csi.NodePublishVolumeRequest{VolumeContext: map[string]string{"k": "v"}}
	_, err := logCalls(&out)(t.Context(), request, &grpc.UnaryServerInfo{FullMethod: "/csi.v1.Node/NodePublishVolume"},
		func(context.Context, any) (any, error) { return nil, status.Error(codes.Aborted, "busy") })
	if status.Code(err) != codes.Aborted {
		t.Fatalf("the caller gets %v", err)
	}
	text, ok := strings.CutPrefix(out.String(), "gRPCCall:")
	var call struct {
		Method  string
		Request struct {
			VolumeContext map[string]string `json:"volume_context"`
		}
		FullError struct {
			Code codes.Code `json:"code"`
		}
	}
	if err := json.Unmarshal([]byte(text), &call); err != nil || !ok {
		t.Fatalf("%q: %v", out.String(), err)
	}
	if call.Method != "/csi.v1.Node/NodePublishVolume" || call.Request.VolumeContext["k"] != "v" ||
		call.FullError.Code != codes.Aborted {
		t.Errorf("%+v", call)
	}
}
