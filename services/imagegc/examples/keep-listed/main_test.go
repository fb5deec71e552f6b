package main

import (
	"slices"
	"testing"

	retentionv1 "github.com/microlet/microlet/proto/microlet/imageretentionplugin/v1"
)

func TestKept(t *testing.T) {
	images := []*retentionv1.KeepRequest_Image{
		{Id: "1", Names: []string{"registry.example/base/go:1"}},
		{Id: "2", Names: []string{"registry.example/app:1", "registry.example/app@sha256:00"}},
		{Id: "3"},
		{Id: "4", Names: []string{"other:1", "registry.example/base/c:2"}},
	}
	got := kept("# base images\n\n registry.example/base/ \n", images)
	if !slices.Equal(got, []string{"1", "4"}) {
		t.Errorf("kept %q", got)
	}
	if got := kept("", images); got != nil {
		t.Errorf("an empty list keeps %q", got)
	}
}
