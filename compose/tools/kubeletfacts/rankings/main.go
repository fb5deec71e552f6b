// Command rankings writes in which order the pinned kubelet would evict the pods of random mixes.
//
// It writes rankings.json to the folder of its argument, one mix a line. The mixes differ by their seed alone, so that
// the same kubelet gives the same file. The tests of services/evictor/internal/rank replay it. For another version of
// the kubelet, change go.mod here and run
//
//	GOWORK=off go run ./rankings ../../../services/evictor/internal/rank/testdata
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	_ "unsafe" // go:linkname

	v1 "k8s.io/api/core/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	evictionapi "k8s.io/kubernetes/pkg/kubelet/eviction/api"

	_ "k8s.io/kubernetes/pkg/kubelet/eviction" // has the functions that order
)

const (
	mixes = 20
	pods  = 10 // of a mix
)

// mix is one line of the file.
type mix struct {
	Seed uint64    `json:"seed"`
	Pods []*v1.Pod `json:"pods"`
	// Figures are what each pod uses, by its name. The kubelet knows nothing of a pod that has none here.
	Figures map[string]statsapi.PodStats `json:"figures"`
	Orders  []order                      `json:"orders"`
}

// order has the names of a mix's pods, the first to evict first.
type order struct {
	Signal evictionapi.Signal `json:"signal"`
	// ImageFs and SplitContainerFs say whether images, and the containers' layers apart from them, have filesystems of
	// their own.
	ImageFs          bool     `json:"imageFs"`
	SplitContainerFs bool     `json:"splitContainerFs"`
	Names            []string `json:"names"`
}

// rankers is buildSignalToRankFunc of the kubelet: what orders the pods for each signal.
//
//go:linkname rankers k8s.io/kubernetes/pkg/kubelet/eviction.buildSignalToRankFunc
func rankers(imageFs, splitContainerFs bool) map[evictionapi.Signal]func([]*v1.Pod,
	func(*v1.Pod) (statsapi.PodStats, bool))

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: rankings FOLDER")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(dir string) error {
	var text bytes.Buffer
	for seed := range uint64(mixes) {
		m := randomMix(rand.New(rand.NewPCG(seed, 0)), pods)
		m.Seed, m.Orders = seed, m.rank()
		line, err := json.Marshal(m)
		if err != nil {
			return fmt.Errorf("encode mix %d: %w", seed, err)
		}
		text.Write(append(line, '\n'))
	}
	return os.WriteFile(filepath.Join(dir, "rankings.json"), text.Bytes(), 0o644)
}

// rank has the kubelet order the pods of a mix for each signal, in each layout of filesystems.
func (m *mix) rank() (orders []order) {
	figures := func(p *v1.Pod) (statsapi.PodStats, bool) {
		f, ok := m.Figures[p.Name]
		return f, ok
	}
	disks := []evictionapi.Signal{
		evictionapi.SignalNodeFsAvailable, evictionapi.SignalNodeFsInodesFree,
		evictionapi.SignalImageFsAvailable, evictionapi.SignalImageFsInodesFree,
		evictionapi.SignalContainerFsAvailable, evictionapi.SignalContainerFsInodesFree,
	}
	all := append([]evictionapi.Signal{evictionapi.SignalMemoryAvailable, evictionapi.SignalPIDAvailable}, disks...)
	for _, l := range []struct {
		imageFs, split bool
		signals        []evictionapi.Signal
	}{{false, false, all}, {true, false, disks}, {true, true, disks}} {
		ranker := rankers(l.imageFs, l.split)
		for _, signal := range l.signals {
			sorted := append([]*v1.Pod{}, m.Pods...)
			ranker[signal](sorted, figures)
			o := order{Signal: signal, ImageFs: l.imageFs, SplitContainerFs: l.split}
			for _, p := range sorted {
				o.Names = append(o.Names, p.Name)
			}
			orders = append(orders, o)
		}
	}
	return orders
}
