package bus

import (
	"context"
	"time"

	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/logkey"
)

// compareAgain is when a bucket is compared with its writer once more after a mark.
const compareAgain = 5 * time.Second

// compare looks at what the bucket holds of this writer's older epochs, and puts it right. There are
// two ways to it. What an earlier life left: readers drop it at the mark, but the bucket would keep it
// for ever. And a put that was under way when a stopped bus was given up: the bus may read it from the
// old connection after what came by the new one.
func (w *Writer) compare(ctx context.Context, s *session) {
	for range 2 {
		var old []string
		err := list(ctx, s.nc, w.c.opts.Role, w.bucket, func(e entry) {
			if e.writer == w.c.Writer() && e.epoch < w.epochNow() && !subject.IsEpochKey(e.key) {
				if e.deleted && !w.has(e.key) {
					return
				}
				old = append(old, e.key)
			}
		})
		if err != nil && ctx.Err() == nil && w.c.current() == s {
			w.c.log.Warn("cannot compare a bucket with what was written to it", "bucket", w.bucket, logkey.Err, err)
		}
		w.rewrite(old)
		if !sleep(ctx, s.gone, compareAgain) {
			return
		}
	}
}

func (w *Writer) epochNow() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.epoch
}

func (w *Writer) has(key string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.keys[key] != nil
}

// rewrite puts the keys that this writer has, and deletes the others.
func (w *Writer) rewrite(keys []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, key := range keys {
		c := w.keys[key]
		if c == nil {
			w.remove(key)
			continue
		}
		c.version++
		w.enqueue(key, c)
	}
}
