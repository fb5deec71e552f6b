// Command picture draws the trace of a pod's start as an SVG.
//
//	picture -pod NAME -o FILE.svg [-least 1ms] < SPANS
//
// It reads the lines that the receiver writes. Time goes from left to right. Each span is below the one that it was
// begun in, and has the color of the process that has done the work. Text is drawn as text, so a reader can select and
// search it.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/microlet/microlet/compose/tools/traces/span"
)

func main() {
	pod := flag.String("pod", "", "the pod whose start is drawn")
	out := flag.String("o", "", "the file to write")
	least := flag.Duration("least", 0, "leave out spans that took less, unless something longer is below them")
	flag.Parse()
	if *pod == "" || *out == "" || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "usage: picture -pod NAME -o FILE.svg [-least DURATION] < SPANS")
		os.Exit(2)
	}
	if err := run(os.Stdin, *pod, *out, *least); err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

func run(from io.Reader, pod, out string, least time.Duration) error {
	all, err := span.Read(from)
	if err != nil {
		return err
	}
	t, err := startOf(all, pod)
	if err != nil {
		return err
	}
	return os.WriteFile(out, []byte(draw(t, pod, least)), 0o644)
}

// startOf returns the trace of a pod's start, a tree: its root is the pod's first sync.
func startOf(all []span.Span, pod string) (*node, error) {
	var root *span.Span
	for i, s := range all {
		if s.Name == "syncPod" && s.Parent == "" && s.Attributes["k8s.pod.name"] == pod &&
			(root == nil || s.Start.Before(root.Start)) {
			root = &all[i]
		}
	}
	if root == nil {
		return nil, fmt.Errorf("no trace begins with a sync of pod %s", pod)
	}
	t, lost := tree(all, root)
	if lost > 0 {
		return nil, errors.New("the trace is not whole: spans lack the one that they were begun in")
	}
	return t, nil
}
