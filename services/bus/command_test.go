package bus

import (
	"testing"

	"github.com/microlet/microlet/services/bus/internal/accounts"
)

// TestTheStoreFitsIntoTheLimit: the store is on a tmpfs. Its pages count as memory of the process that has written
// them. Neither the end of the process nor garbage collection frees them. A bus that its store alone brings to the
// limit would be killed again and again.
func TestTheStoreFitsIntoTheLimit(t *testing.T) {
	d := Definition()
	if left := d.Memory() - accounts.StoreBytes(); d.HeapTarget == 0 || d.HeapTarget > left {
		t.Errorf("a full store leaves %d of %d bytes, and garbage is collected to stay within %d", left, d.Memory(),
			d.HeapTarget)
	}
}
