package cri

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/stats/internal/readerrors"
)

// PodStats are the runtime's own figures of sandboxes and their containers (KEP-2371). They are shared: do not change
// them.
type PodStats struct {
	// Supported reports whether the runtime has such figures.
	Supported bool
	// Sandboxes are the figures by the sandbox's ID. A number that cannot be is absent.
	Sandboxes map[string]*runtimeapi.PodSandboxStats
}

// PodClient asks for the figures of sandboxes. Only one goroutine at a time may use it.
type PodClient struct {
	c *Client
	// last are the CPU totals of the last answer, by the ID of a sandbox or container.
	last map[string]cpuSample
}

// cpuSample is how long something has used processors until a time, in nanoseconds.
type cpuSample struct {
	at    int64
	total uint64
}

// NewPodClient returns a client that shares the connection of another one.
func NewPodClient(c *Client) *PodClient { return &PodClient{c: c} }

// Read asks what sandboxes and containers use. A runtime that does not implement that is no error.
func (p *PodClient) Read(ctx context.Context) (*PodStats, error) {
	s := &PodStats{Supported: true, Sandboxes: map[string]*runtimeapi.PodSandboxStats{}}
	next := map[string]cpuSample{}
	for one, err := range p.c.lists.SandboxStats(ctx, nil) {
		if status.Code(err) == codes.Unimplemented {
			return &PodStats{}, nil
		}
		if err != nil {
			return nil, fmt.Errorf("the runtime does not list what sandboxes use: %w", err)
		}
		id := one.GetAttributes().GetId()
		linux := one.GetLinux()
		if id == "" || linux == nil {
			continue
		}
		p.check("sandbox "+id, linux.GetCpu(), linux.GetMemory())
		p.rate(next, id, linux.GetCpu())
		for _, c := range linux.GetContainers() {
			p.check("container "+c.GetAttributes().GetId(), c.GetCpu(), c.GetMemory())
			p.rate(next, c.GetAttributes().GetId(), c.GetCpu())
			if c.GetWritableLayer() == nil {
				continue
			}
			if _, err := usage(c.GetWritableLayer()); err != nil {
				p.c.book.Add(readerrors.Runtime, "container "+c.GetAttributes().GetId(), err)
				c.WritableLayer = nil
			}
		}
		s.Sandboxes[id] = one
	}
	p.last = next
	return s, nil
}

// check removes what cannot be from the figures of one sandbox or container.
func (p *PodClient) check(what string, cpu *runtimeapi.CpuUsage, memory *runtimeapi.MemoryUsage) {
	var errs []error
	number := func(name string, v **runtimeapi.UInt64Value) {
		if (*v).GetValue() > unbelievable {
			errs = append(errs, fmt.Errorf("%s is %d", name, (*v).GetValue()))
			*v = nil
		}
	}
	if cpu != nil {
		number("usage_core_nano_seconds", &cpu.UsageCoreNanoSeconds)
		number("usage_nano_cores", &cpu.UsageNanoCores)
		errs = append(errs, checkTime(&cpu.Timestamp))
	}
	if memory != nil {
		number("working_set_bytes", &memory.WorkingSetBytes)
		number("available_bytes", &memory.AvailableBytes)
		number("usage_bytes", &memory.UsageBytes)
		number("rss_bytes", &memory.RssBytes)
		number("page_faults", &memory.PageFaults)
		number("major_page_faults", &memory.MajorPageFaults)
		errs = append(errs, checkTime(&memory.Timestamp))
	}
	if err := errors.Join(errs...); err != nil {
		p.c.book.Add(readerrors.Runtime, what, err)
	}
}

// checkTime replaces a time that cannot be with now, which is when the runtime was asked.
func checkTime(nanoseconds *int64) error {
	if _, err := when(*nanoseconds); err != nil {
		*nanoseconds = time.Now().UnixNano()
		return err
	}
	return nil
}

// rate adds the use of processors since the last answer where the runtime has only the total, as with CRI-O.
func (p *PodClient) rate(next map[string]cpuSample, id string, cpu *runtimeapi.CpuUsage) {
	if cpu.GetUsageCoreNanoSeconds() == nil {
		return
	}
	now := cpuSample{at: cpu.GetTimestamp(), total: cpu.GetUsageCoreNanoSeconds().GetValue()}
	before, ok := p.last[id]
	next[id] = now
	if cpu.GetUsageNanoCores() != nil || !ok || now.at <= before.at || now.total < before.total {
		return
	}
	cores := float64(now.total-before.total) / float64(now.at-before.at)
	cpu.UsageNanoCores = &runtimeapi.UInt64Value{Value: uint64(math.Round(cores * float64(time.Second)))}
}
