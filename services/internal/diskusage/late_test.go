package diskusage

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/microlet/microlet/services/internal/childpool"
)

// counts reports whether evictor takes the figure: it is young, or late.
func counts(m *Measurer, path string) bool {
	f, ok := m.Measurement(Dir{Path: path})
	return ok && (f.Late || time.Since(f.Time) <= 2*DefaultPeriod+30*time.Second)
}

func isLate(m *Measurer, path string) bool {
	f, _ := m.Measurement(Dir{Path: path})
	return f.Late
}

// A large directory has a figure that counts from the end of its first walk on, and so have many directories that only
// together are large.
func TestAFigureIsLateWhileItsDirectoryIsMeasured(t *testing.T) {
	for name, test := range map[string]struct{ directories, entries int }{
		"one large":  {1, 600_000},
		"many large": {3 * maxWalks, 300_000},
		"many small": {300, 15_000},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				paths := w.add("dir", test.directories, test.entries)
				m, _, stop := w.measurer(Config{})
				defer stop()
				w.track(m, paths...)
				sleep(2 * time.Hour)
				late := 0
				for range 360 {
					sleep(10 * time.Second)
					for _, p := range paths {
						if !counts(m, p) {
							t.Fatalf("the figure of %s does not count, and is %v old", p, age(m, p))
						}
						if isLate(m, p) {
							late++
						}
					}
				}
				if late == 0 {
					t.Error("no figure is late")
				}
			})
		})
	}
}

// Figures that are as young as they should be are not late.
func TestAYoungFigureIsNotLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.entries["/large"] = 600_000
		small := w.add("small", 20, 50)
		m, _, stop := w.measurer(Config{})
		defer stop()
		w.track(m, append(small, "/large")...)
		sleep(time.Hour)
		for range 120 {
			sleep(time.Second)
			for _, p := range small {
				if a := age(m, p); isLate(m, p) && a <= DefaultPeriod {
					t.Fatalf("the figure of %s is late, and %v old", p, a)
				}
			}
		}
	})
}

// A figure does not count for ever if its directory is not measured: its device hangs, its walk fails, or there is no
// process for it.
func TestAFigureIsNotLateWhileNothingIsMeasured(t *testing.T) {
	for name, test := range map[string]struct {
		breaks func(w *world)
		alive  map[string]bool
	}{
		"its device hangs": {
			func(w *world) { w.hang(childpool.Lane{Major: 0, Minor: 50}) },
			map[string]bool{"/nfs/large": false, "/nfs/beside": false, "/local": true},
		},
		"it cannot be read": {
			func(w *world) { w.set(func() { w.broken["/nfs/large"] = "input/output error" }) },
			map[string]bool{"/nfs/large": false, "/nfs/beside": true, "/local": true},
		},
		"it ends each child": {
			func(w *world) { w.set(func() { w.dies = "/nfs/large" }) },
			map[string]bool{"/nfs/large": false, "/nfs/beside": true, "/local": true},
		},
		"there is no child": {
			func(w *world) { w.set(func() { w.dies, w.full = "/nfs/large", true }) },
			map[string]bool{"/nfs/large": false, "/nfs/beside": false, "/local": false},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.mounts["/nfs"] = childpool.Lane{Major: 0, Minor: 50}
				w.entries["/nfs/large"], w.entries["/nfs/beside"], w.entries["/local"] = 600_000, 600_000, 600_000
				m, _, stop := w.measurer(Config{})
				defer stop()
				w.track(m, "/nfs/large", "/nfs/beside", "/local")
				sleep(time.Hour)
				test.breaks(w)
				defer w.heal()
				sleep(5 * time.Minute) // evictor takes figures that are half as old
				for range 1800 {
					sleep(time.Second)
					for path, alive := range test.alive {
						if got := counts(m, path); got != alive {
							t.Fatalf("the figure of %s counts: %t, and is %v old", path, got, age(m, path))
						}
					}
				}
			})
		})
	}
}

// What is no longer tracked takes no budget.
