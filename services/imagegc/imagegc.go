package imagegc

import (
	"context"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"

	imagegcv1 "github.com/microlet/microlet/proto/microlet/imagegc/v1"
	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/imagegc/internal/ages"
	"github.com/microlet/microlet/services/imagegc/internal/collector"
	"github.com/microlet/microlet/services/imagegc/internal/cri"
	"github.com/microlet/microlet/services/imagegc/internal/imagefs"
	"github.com/microlet/microlet/services/imagegc/internal/imagelist"
	"github.com/microlet/microlet/services/imagegc/internal/podimages"
	"github.com/microlet/microlet/services/imagegc/internal/retention"
	"github.com/microlet/microlet/services/imagegc/internal/schedule"
	"github.com/microlet/microlet/services/imagegc/internal/server"
	"github.com/microlet/microlet/services/internal/crilist"
	"github.com/microlet/microlet/services/internal/eventref"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/nodepods"
	"github.com/microlet/microlet/services/internal/outbox"
	"github.com/microlet/microlet/services/internal/service"
)

const (
	// collectPeriod is the kubelet's ImageGCPeriod, and its period of detection.
	collectPeriod = 5 * time.Minute
	// listPeriod is how old the list of images in the Node's status may be, as with the kubelet.
	listPeriod = 30 * time.Second
	// agesFile is the file in the state folder.
	agesFile = "ages.json"
)

// Run runs imagegc until ctx ends.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	s, runtime, err := service.NewWithCRI(cfg.Service, role.ImageGC)
	if err != nil {
		return err
	}
	defer runtime.Close()
	client := cri.New(runtime, crilist.Options{Log: s.Log, Metrics: s.Metrics})
	store, err := ages.Open(ages.Options{
		Path: filepath.Join(cfg.StateDir, agesFile), Boot: ages.ReadBoot, Log: s.Log,
	})
	if err != nil {
		return err
	}
	pods := nodepods.WatchWithoutStatus(s.Bus, s.Log, nil)
	events := outbox.NewRecorder(s.Bus, cfg.Service.NodeName, s.Log)
	gc := collector.New(collector.Options{
		Runtime: client, Ages: store, FileSystem: imagefs.New(), Pods: podimages.New(pods),
		Retention:            retention.New(cfg.RetentionPlugin, s.Config.SocketDir(s.Role), s.Log),
		HighThresholdPercent: cfg.highThreshold(), LowThresholdPercent: cfg.lowThreshold(),
		MinimumAge: cfg.Kubelet.Kubelet.ImageMinimumGCAge.Duration,
		MaximumAge: cfg.Kubelet.Kubelet.ImageMaximumGCAge.Duration,
		Settling:   collectPeriod,
		Events:     events, Node: eventref.Node(cfg.Service.NodeName), Tracer: s.Tracer, Log: s.Log, Metrics: s.Metrics,
	})
	imagegcv1.RegisterImageGCServiceServer(s.GRPC, server.New(gc))
	s.Offer(&imagegcv1.ImageGCService_ServiceDesc, role.Evictor, role.Up)
	list := imagelist.NewPublisher(s.Bus.Own(subject.Node), cfg.maxImages())
	s.Go("events", events.Run)
	s.Go("schedule", func(ctx context.Context) error {
		return schedule.Run(ctx, s.Pulse.Turn,
			&schedule.Task{Period: listPeriod, Run: func(ctx context.Context) { publish(ctx, s, client, list) }},
			&schedule.Task{Period: collectPeriod, Run: collection(&cfg, s, gc, pods, events)})
	})
	s.Ready("keeping account of images")
	return s.Run(ctx)
}

// publish lists the images for the Node's status.
func publish(ctx context.Context, s *service.Service, client *cri.Client, list *imagelist.Publisher) {
	images, err := client.Images(ctx)
	if err != nil {
		if ctx.Err() == nil {
			s.Log.Warn("images not listed; the node's status has those of before", logkey.Err, err)
		}
		return
	}
	list.Publish(images)
}

// syncWait bounds how long a collection waits for the node's pods to be known.
const syncWait = time.Minute

// collection returns the task that collects garbage, or only keeps account of images. As with the kubelet, the Node
// gets an Event when it fails twice in a row.
func collection(cfg *Config, s *service.Service, gc *collector.Collector, pods *nodepods.View,
	events *outbox.Recorder,
) func(context.Context) {
	run := gc.Detect
	if cfg.collects() {
		run = gc.Collect
	}
	failed := false
	return func(ctx context.Context) {
		waitSynced(ctx, pods)
		err := run(ctx)
		switch {
		case ctx.Err() != nil:
		case err == nil:
			failed = false
		case failed:
			s.Log.Error("image garbage collection failed again", logkey.Err, err)
			events.Event(eventref.Node(cfg.Service.NodeName), v1.EventTypeWarning, "ImageGCFailed", err.Error())
		default:
			s.Log.Warn("image garbage collection failed", logkey.Err, err)
			failed = true
		}
	}
}

// waitSynced waits until the node's pods are known, for a bounded time.
func waitSynced(ctx context.Context, pods *nodepods.View) {
	ctx, cancel := context.WithTimeout(ctx, syncWait)
	defer cancel()
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for !pods.Synced() {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}
