// Command keep-listed is an image retention plugin. It keeps the images with names that begin with a line of
// /etc/microlet/keep-images, such as registry.example/base/. Empty lines and lines that begin with # have no meaning.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	retentionv1 "github.com/microlet/microlet/proto/microlet/imageretentionplugin/v1"
	"github.com/microlet/microlet/services/imagegc/plugin"
)

const list = "/etc/microlet/keep-images"

func main() {
	plugin.Serve(func(_ context.Context, images []*retentionv1.KeepRequest_Image) ([]string, error) {
		text, err := os.ReadFile(list)
		if err != nil {
			return nil, fmt.Errorf("read which images to keep: %w", err)
		}
		return kept(string(text), images), nil
	})
}

// kept returns the IDs of the images with a name that begins with one of the lines.
func kept(text string, images []*retentionv1.KeepRequest_Image) []string {
	var prefixes, ids []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			prefixes = append(prefixes, line)
		}
	}
	for _, image := range images {
		if slices.ContainsFunc(image.GetNames(), func(name string) bool {
			return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
		}) {
			ids = append(ids, image.GetId())
		}
	}
	return ids
}
