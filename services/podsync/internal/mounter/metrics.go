package mounter

import "github.com/prometheus/client_golang/prometheus"

// register shows the numbers of children.
func (p *Pool) register(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	for state, number := range map[string]func() int{
		"busy": func() int { return p.children - len(p.idle) - p.hung },
		"idle": func() int { return len(p.idle) },
		"hung": func() int { return p.hung },
	} {
		err := r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "microlet_podsync_mounter_children",
			Help:        "Child processes for calls on volumes. One that is hung was killed, and the kernel has not let it end.",
			ConstLabels: prometheus.Labels{"state": state},
		}, func() float64 {
			p.mu.Lock()
			defer p.mu.Unlock()
			return float64(number())
		}))
		if err != nil {
			return err
		}
	}
	return nil
}
