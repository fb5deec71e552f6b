package bus

import (
	"testing"

	"github.com/microlet/microlet/services/bus/internal/accounts"
)

// TestWhatTheBusHoldsFitsIntoItsLimit: the outbox is on a tmpfs. Its pages count as memory of the process that has
// written them. Neither the end of the process nor garbage collection frees them. The buckets are in the heap. A bus
// that they alone bring to the limit would be killed again and again.
func TestWhatTheBusHoldsFitsIntoItsLimit(t *testing.T) {
	d := Definition()
	if left := d.Memory() - accounts.StoreBytes(); d.HeapTarget > left {
		t.Errorf("a full outbox leaves %d of %d bytes, and garbage is collected to stay within %d", left, d.Memory(),
			d.HeapTarget)
	}
	if full := accounts.MemoryBytes(); d.HeapTarget < full*3/2 {
		t.Errorf("full buckets have %d bytes, of which the garbage is collected all the time to stay within %d", full,
			d.HeapTarget)
	}
}
